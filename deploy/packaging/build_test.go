package packaging

import (
	"bytes"
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goreleaser/goreleaser/v2/pkg/config"
)

// TestRelease_BuildsTheSameBytesAnywhere builds the latest commit in two clones, with the
// flags and variables of the release.
func TestRelease_BuildsTheSameBytesAnywhere(t *testing.T) {
	t.Parallel()
	release, err := config.Load("../../.goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	build := release.Builds[0]
	flags := slices.Concat([]string{"build", "-o", "built"}, build.Flags, []string{"-ldflags=" + strings.Join(build.Ldflags, " "), build.Main})
	if strings.Contains(strings.Join(flags, " "), "{{") {
		t.Fatalf("%q depends on the environment of the release", flags)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	run := func(dir, name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), release.Env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
	}
	var binaries [][]byte
	for range 2 {
		clone := t.TempDir()
		run(clone, "git", "clone", "--quiet", "--depth", "1", "file://"+root, ".")
		run(clone, "go", flags...)
		binary, err := os.ReadFile(filepath.Join(clone, "built"))
		if err != nil {
			t.Fatal(err)
		}
		binaries = append(binaries, binary)
	}
	if !bytes.Equal(binaries[0], binaries[1]) {
		t.Error("two builds of one commit differ")
	}
	info, err := buildinfo.Read(bytes.NewReader(binaries[0]))
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for _, setting := range info.Settings {
		settings[setting.Key] = setting.Value
	}
	if settings["CGO_ENABLED"] != "0" || settings["vcs.revision"] == "" || settings["vcs.modified"] != "false" {
		t.Errorf("the binary says it was built with %v", settings)
	}
}
