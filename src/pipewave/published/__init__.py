"""What deployments leave unsaid, filled as published ones were launched; and the answers to them."""
