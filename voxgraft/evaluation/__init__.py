"""Judging a run by what it says: sentence sets, speech in batches, listening, scores, proofs, the report."""
