"""The user's variables: a list, and fingerprints that show whether they changed. None of the user's code is run.

- `fingerprints`: short digests that are equal for equal values.
- `values`: examining a user's values without running any code of theirs.
- `variable_list`: a list of the user's variables.
"""
