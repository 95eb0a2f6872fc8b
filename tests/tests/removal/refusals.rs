//! What keeps a removal from beginning, at admission and under the lock.
