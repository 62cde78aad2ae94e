"""Commands about share groups: their state, their settings, their blocked keys."""
