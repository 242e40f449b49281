package bench

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// kindNamed returns the kind of ceiling.
func kindNamed(t *testing.T, name string) ceilingKind {
	t.Helper()
	for _, kind := range ceilings {
		if kind.name == name {
			return kind
		}
	}
	t.Fatalf("there is no ceiling of %s", name)
	return ceilingKind{}
}

func TestTheCeilingsKeepTheBodyAndCleanUp(t *testing.T) {
	t.Parallel()
	for _, kind := range ceilings {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			open := kind.open
			var kept []string
			kind.open = func(dir string) (func([]byte) error, func() error, error) {
				keep, closing, err := open(dir)
				return func(body []byte) error {
					kept = append(kept, string(body))
					return keep(body)
				}, closing, err
			}
			server, err := startCeiling(t.Context(), kind, dir)
			if err != nil {
				t.Fatal(err)
			}
			client := newClient(server.url, 1)
			if err := client.send(t.Context(), http.MethodPost, "/", []byte("body"), nil); err != nil {
				t.Error(err)
			}
			client.close()
			if err := server.close(); err != nil {
				t.Error(err)
			}
			if len(kept) != 1 || kept[0] != "body" {
				t.Errorf("kept %q", kept)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("%v is left, %v", left, err)
			}
		})
	}
}

// A failing disk must not look like a fast one.
func TestTheCeilingAnswersAFailedWriteWith500(t *testing.T) {
	t.Parallel()
	kind := kindNamed(t, GroupedSync)
	kind.open = func(dir string) (func([]byte) error, func() error, error) {
		log, err := openGroupLog(dir)
		if err == nil {
			err = log.file.Close()
		}
		return log.append, log.close, err
	}
	server, err := startCeiling(t.Context(), kind, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	client := newClient(server.url, 1)
	err = client.send(t.Context(), http.MethodPost, "/", []byte("body"), nil)
	var status *StatusError
	if !errors.As(err, &status) || status.Status != http.StatusInternalServerError {
		t.Errorf("error %v", err)
	}
	client.close()
	if err := server.close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("close: error %v", err)
	}
}

func TestTheCeilingCommitsABodyAsARow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keep, closing, err := openCommits(dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := keep(make([]byte, 10<<10)); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("folders %v, %v", entries, err)
	}
	size := int64(0)
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if info, statErr := entry.Info(); err == nil && statErr == nil {
			size += info.Size()
		}
		return err
	})
	if err != nil || size < 1e6 {
		t.Errorf("the folder has %d bytes, %v", size, err)
	}
	if err := closing(); err != nil {
		t.Error(err)
	}
}
