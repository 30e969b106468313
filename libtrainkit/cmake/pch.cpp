// Empty source for the target of the precompiled header.
