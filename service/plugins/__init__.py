"""APIs beside `/v1`, a package for each."""
