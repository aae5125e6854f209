"""The folders of runs, changed with the rights of the accounts that own them."""
