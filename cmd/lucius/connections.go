package main

import "context"

// maxConnections is how many connections may be open: as many as are configured,
// but at most half of the files that the process may have open. The store needs
// files as well, and fails where it gets none.
func (s *system) maxConnections(ctx context.Context) int {
	wanted := s.cfg.MaxConnections
	files, limited := openFiles()
	if !limited || uint64(wanted) <= files/2 {
		return wanted
	}
	s.log.WarnContext(ctx, "fewer connections than LUCIUS_MAX_CONNECTIONS, for want of open files",
		"connections", files/2, "max_connections", wanted, "open_files", files)
	return int(files / 2)
}
