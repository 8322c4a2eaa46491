"""A kernel's working folder in its snapshots: stored beside the memory, and put back on request.

- `folder_changes`: the files that differ between two moments, with the differences of texts.
- `folder_copies`: the folders that branches have for themselves.
- `folder_merges`: the files of a branch put together with those of the kernel that it was made from.
- `folder_plans`: the steps from the files that are there to those that are wanted.
- `folder_restores`: the carrying out of these steps, which can be undone.
- `folder_returns`: a resume's part: the present files are saved, those of the snapshot put in place.
- `folder_saves`: the storing of the folder before and in a freeze.
- `folder_walks`: what is in the folder, without what is left out.
- `ignore_rules`: the rules of .gitignore files.
- `stored_folders`: the files of a folder in a snapshot.
"""
