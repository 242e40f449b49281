package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/config"
)

func TestMaxConnections_LeavesFilesToTheStore(t *testing.T) {
	t.Parallel()
	files, limited := openFiles()
	for _, test := range []struct {
		wanted int
		cut    bool
	}{
		{1, false},
		{int(files/2) + 1, limited},
	} {
		var log bytes.Buffer
		s := &system{cfg: &config.Config{MaxConnections: test.wanted}, log: slog.New(slog.NewTextHandler(&log, nil))}
		got := s.maxConnections(t.Context())
		if cut := got < test.wanted; cut != test.cut || cut != strings.Contains(log.String(), "max_connections=") {
			t.Errorf("%d of %d connections with %d files, and the log says %q", got, test.wanted, files, &log)
		}
		if test.cut && uint64(got) != files/2 {
			t.Errorf("%d connections with %d files", got, files)
		}
	}
}
