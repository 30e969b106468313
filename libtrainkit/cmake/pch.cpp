// Only the precompiled header is of use.
