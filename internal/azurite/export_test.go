//go:build integration

package azurite

// Orphan affects the server like the end of its parent process, and waits until it has
// ended.
func Orphan(s *Server) {
	_ = s.stdin.Close()
	<-s.drained
}
