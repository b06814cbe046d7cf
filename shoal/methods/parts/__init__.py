"""Mechanisms, by what they act on; papers' names stand in the catalog.

- local_optimizers   SGD, Adam and AdamW on clients
- gradients          local gradients that are corrected: control variates, global momentum,
                     sharpness
- loss_terms         terms added to the local loss, and starts beyond the model
- session_starts     what a session starts from when members have changed
- mean_field_rates   client learning rates from the mean trajectory (FedAgg), probed
- remembered_rates   the same rates from remembered trajectories, and along summed gradients
- adaptive_work      learning rates that follow variability, epochs that stop early
- server_optimizers  server steps on the mean displacement
- sent_changes       what clients send instead of their change: less of it, or a clipped one
                     under noise
- aggregators        one displacement of many: robust rules, normalised averaging
- personal           personal models, private and frozen tensors
- prototypes         a header that the server trains on class prototypes
- several_models     banks of global models
- detectors          detectors of shifts that nobody announced, and parts that only measure
- continual/         Parts against forgetting: tasks come one after another
"""
