package repocheck_test

import (
	"slices"
	"testing"
)

const (
	// maxLines is where a file has more than one idea, whatever it says.
	maxLines = 700
	// maxMedian keeps the usual file at a length that is read in one go.
	maxMedian = 170
)

// A file that does not fit in the head is not reviewed, it is scrolled. Split
// it along its ideas. Generated files are not read by anyone and do not count.
func TestNoFileIsTooLong(t *testing.T) {
	t.Parallel()
	for _, f := range goFiles(t) {
		if n := f.lines(); n > maxLines {
			t.Errorf("%s has %d lines, at most %d are fine: split it along its ideas", f.path, n, maxLines)
		}
	}
}

// The limit above stops the worst; the median says how the code reads on an
// ordinary day. Tests may be longer than what they test.
func TestTheUsualFileIsShort(t *testing.T) {
	t.Parallel()
	var lengths []int
	for _, f := range goFiles(t) {
		if !f.isTest() {
			lengths = append(lengths, f.lines())
		}
	}
	slices.Sort(lengths)
	if median := lengths[len(lengths)/2]; median > maxMedian {
		t.Errorf("half of the %d source files have more than %d lines, at most %d are fine", len(lengths), median, maxMedian)
	}
}
