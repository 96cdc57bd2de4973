from profkit.instrument.tracking.notes import Notes as Notes
