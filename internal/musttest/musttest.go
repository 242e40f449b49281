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

// Make returns what a constructor makes of its configuration, or a parser of its text.
func Make[C, T any](t testing.TB, from func(C) (T, error), arg C) T {
	t.Helper()
	made, err := from(arg)
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
