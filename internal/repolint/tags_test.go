package repolint_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	buildConstraint = regexp.MustCompile(`(?m)^//go:build (.+)$`)
	buildTag        = regexp.MustCompile(`!?\w+`)
	lintedTags      = regexp.MustCompile(`(?m)^  build-tags: \[(.+)\]$`)
	lintedApart     = regexp.MustCompile(`\$\(GOLANGCI_LINT\) run --build-tags (\w+)`)
)

// platformTags are set by the compiler.
var platformTags = []string{"linux", "race", "unix"}

// The linter checks every file that needs one of the project's build tags.
func TestEveryBuildTagIsLinted(t *testing.T) {
	t.Parallel()
	var linted, used []string
	for _, f := range readTree(t) {
		switch f.path {
		case ".golangci.yml":
			linted = append(linted, strings.Split(string(lintedTags.FindSubmatch(f.text)[1]), ", ")...)
		case "Makefile":
			linted = append(linted, string(lintedApart.FindSubmatch(f.text)[1]))
		}
		if !strings.HasSuffix(f.path, ".go") {
			continue
		}
		for _, constraint := range buildConstraint.FindAllSubmatch(f.text, -1) {
			for _, tag := range buildTag.FindAllString(string(constraint[1]), -1) {
				if !strings.HasPrefix(tag, "!") && !slices.Contains(platformTags, tag) {
					used = append(used, tag)
				}
			}
		}
	}
	slices.Sort(linted)
	slices.Sort(used)
	if used = slices.Compact(used); !slices.Equal(used, linted) {
		t.Errorf("the files use the build tags %q, and the linter runs with %q", used, linted)
	}
}
