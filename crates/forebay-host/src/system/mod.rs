//! What the machine offers.
