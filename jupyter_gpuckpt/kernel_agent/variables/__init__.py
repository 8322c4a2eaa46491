"""The user's variables: a list of them, and fingerprints that show whether they changed. No code of the user's is run for it."""
