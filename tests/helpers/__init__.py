"""What several tests share; the oracles and planted defects have packages of their own."""
