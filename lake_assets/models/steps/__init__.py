"""A step of a model: plan, choose, compute, write."""
