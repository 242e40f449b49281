package bench

import (
	"errors"
	"net/http"
	"os"
	"testing"
)

func TestTheCeilingAnswersWhenTheBodyIsOnDisk(t *testing.T) {
	t.Parallel()
	server, err := startCeiling(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	client := newClient(server.url, 1)
	if err := client.send(t.Context(), http.MethodPost, "/", []byte("body"), nil); err != nil {
		t.Error(err)
	}
	written, err := os.ReadFile(server.log.file.Name())
	if err != nil || string(written) != "body" {
		t.Errorf("the file holds %q, %v", written, err)
	}
	client.close()
	if err := server.close(); err != nil {
		t.Error(err)
	}
}

// A disk that fails must not look like a fast one.
func TestTheCeilingAnswersAFailedWriteWith500(t *testing.T) {
	t.Parallel()
	server, err := startCeiling(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := server.log.file.Close(); err != nil {
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
