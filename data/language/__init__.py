"""Text to rows of tokens: sources (datasets), tokenizers, store and cache (tokenised splits), rows, and build (all)."""
