package repolint_test

import "testing"

// maxLines bounds the lines of a hand-written file: reviewers scroll through longer ones
// without reading them.
const maxLines = 700

// Generated files do not count.
func TestNoFileIsTooLong(t *testing.T) {
	t.Parallel()
	for _, f := range goFiles(t) {
		if n := f.lines(); n > maxLines {
			t.Errorf("%s has %d lines, at most %d are fine: split it along its ideas", f.path, n, maxLines)
		}
	}
}
