"""The user's variables: a list, and fingerprints that show whether they changed. None of the user's code is run."""
