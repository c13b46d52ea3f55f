"""What a run tells about itself: metrics, trackers, samples, progress, and the reward curve."""
