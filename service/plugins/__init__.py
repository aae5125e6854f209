"""Parts of the service that can be switched off, a package for each."""
