package pgstore

// RolledBack is rolledBack, for tests with answers of servers in other languages.
var RolledBack = rolledBack

// Waiting returns the number of changes that wait for a sender.
func (s *Store) Waiting() int {
	s.writer.mu.Lock()
	defer s.writer.mu.Unlock()
	return len(s.writer.shared.waiting)
}
