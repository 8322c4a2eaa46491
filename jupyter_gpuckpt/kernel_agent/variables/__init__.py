"""The user's variables: what they are, and fingerprints that tell whether they changed. No code of the user's runs for it."""
