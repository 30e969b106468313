// This file only compiles the precompiled header.
