package pgstore

// RolledBack is rolledBack, for tests with answers of servers that speak other languages.
var RolledBack = rolledBack

// Waiting is the number of changes that wait for a sender.
func (s *Store) Waiting() int {
	s.writer.mu.Lock()
	defer s.writer.mu.Unlock()
	return len(s.writer.shared.waiting)
}
