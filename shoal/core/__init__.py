"""Words that every other folder uses; nothing here knows of rounds or methods.

- types           client data, batches, models, outputs, shifts
- setting_types   what a setting may be, and the sentence that refuses the rest
- errors          the one exception whose message is meant for the user
- tree            trees of tensors (tuples and NamedTuples): stacking, rows, arithmetic
- states          registered names of states, and the one encoder of trees
- layout          names and shapes of a network's tensors inside one flat vector
- rng             random numbers by what they are for: keyed, per member, and torch's own drawn
                  from ours
- layers          layers that draw, batch normalisation as a pure function, what is refused
- task            a model and its loss as pure functions of one flat vector
- world_protocol  what a round needs to know of any world
- files           bounds on files of others, writes that are complete or did not happen, text
                  formats, one writer per directory
- machine         cores and memory: how many there are to use; tasks that several threads do
- own_code        code of the user's that a config names: found, said, imported; its digest
- old_names       names of version 0.1, read everywhere and written nowhere
- notes           what a run should say: refusals and fallbacks, each once
"""
