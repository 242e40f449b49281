// Package musttest takes the steps of a test that must succeed, and ends the test if one does
// not. Its functions must run in the goroutine of the test.
package musttest

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// NoError ends the test if there is an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Make returns what the constructor makes of the configuration.
func Make[C, T any](t testing.TB, constructor func(C) (T, error), cfg C) T {
	t.Helper()
	made, err := constructor(cfg)
	NoError(t, err)
	return made
}

// ReadFile returns the content of a file.
func ReadFile(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	NoError(t, err)
	return content
}

// WriteFile creates or replaces a file, which only its owner may read.
func WriteFile[T string | []byte](t testing.TB, path string, content T) {
	t.Helper()
	NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

// Golden compares a text with a golden file, which it first writes if update is set.
func Golden(t testing.TB, path, got string, update bool) {
	t.Helper()
	if update {
		WriteFile(t, path, got)
	}
	if diff := cmp.Diff(string(ReadFile(t, path)), got); diff != "" {
		t.Errorf("%s, which -update would write (-file +got):\n%s", path, diff)
	}
}
