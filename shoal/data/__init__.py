"""Where samples come from, and how they are dealt to clients.

- dataset        what a data set is, the table of sources, checks
- download       where files are looked for, downloads with checksums
- file_formats   IDX, NPZ, CSV, image folders, TFF's SQLite; nothing executes
- images         from bytes to image samples
- augment        crops, flips and cut-outs of images, drawn from keys
- text           token sequences and shared vocabularies
- targets        what is learnt of each row: read from columns, checked
- tables         files, arrays and data frames as columns by name, in blocks of rows
- columns        what becomes of columns: normalised numbers, categories, dates, words
- survey         what is in a table, and a guess of the roles of its columns
- time_column    when rows came, for dated worlds
- later_rows     rows of another file, read as those that were trained on
- given          rows that a program holds: frames, arrays, data sets of torch
- partition/     Pure functions that deal rows to clients
- sources/       Data sets by name
"""
