"""The LightningModule, its losses, optimizers, schedules and callbacks."""
