"""Damaged, odd and hostile files, by the thousand: every reader answers with a value or with one of our errors."""
