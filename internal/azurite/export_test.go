package azurite

// Orphan does to the server what the end of its parent process does, and waits
// until it is gone.
func Orphan(s *Server) {
	_ = s.stdin.Close()
	<-s.drained
}
