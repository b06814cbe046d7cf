"""The stacked engine: a cohort's clients side by side, their step compiled once and replayed."""
