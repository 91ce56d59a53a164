"""Operations, memory, time and price of models and trainings. Page: docs/compute.md."""
