"""Parts against forgetting: tasks come one after another.

- tasks             what they share: the task counter, the last task's model, training on the
                    server
- anchors           pulls towards the model that a task started from
- teachers          distillation from earlier models
- replay_buffer     a buffer of useful past samples
- replay_generator  replay without data, from a generator that the server trains
- replay_gan        replay with a GAN on every client
- task_matching     personal models of past tasks, and the task detector
"""
