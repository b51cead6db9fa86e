"""What tests of several folders share: made-up change events, what they should lead to, and a pipeline to feed."""
