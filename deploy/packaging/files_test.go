package packaging

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/goreleaser/goreleaser/v2/pkg/config"
)

// TestCompose_IsWhatDockerReads loads the compose files as Docker does, with the checks of
// its schema.
func TestCompose_IsWhatDockerReads(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"../compose/compose.yaml", "../compose/postgres.yaml", "../../cmd/lucius/project/common/compose.yaml"} {
		project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
			WorkingDir: filepath.Dir(file), ConfigFiles: []types.ConfigFile{{Filename: file}}, Environment: types.Mapping{},
		}, func(o *loader.Options) { o.SetProjectName("lucius", true) })
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for name, service := range project.Services {
			// By default Docker kills a container after 10 s, before LUCIUS_SHUTDOWN_GRACE.
			serves := service.Image == "lucius" && len(service.Command) == 0
			if grace := service.StopGracePeriod; serves && (grace == nil || time.Duration(*grace) < 50*time.Second) {
				t.Errorf("%s: %s has the stop_grace_period %v", file, name, grace)
			}
			for on := range service.DependsOn {
				if _, known := project.Services[on]; !known {
					t.Errorf("%s: %s depends on %s, which is not there", file, name, on)
				}
			}
		}
	}
}

func TestRelease_IsWhatGoreleaserReads(t *testing.T) {
	t.Parallel()
	release, err := config.Load("../../.goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range release.Archives[0].Files {
		if found, _ := filepath.Glob(filepath.Join("../..", pattern.Source)); len(found) == 0 {
			t.Errorf("%s is not there", pattern.Source)
		}
	}
	for _, content := range release.NFPMs[0].Contents {
		if content.Source == "" {
			continue
		}
		if _, err := os.Stat(filepath.Join("../..", content.Source)); err != nil {
			t.Error(err)
		}
	}
	if build := release.Builds[0]; len(build.Goos)*len(build.Goarch) != 6 || build.Main != "./cmd/lucius" {
		t.Errorf("it builds %v for %v", build.Goos, build.Goarch)
	}
}

// variable is how a setting is named.
var variable = regexp.MustCompile(`LUCIUS_[A-Z_]+`)

// TestSettings_AreThoseOfTheServer looks for settings that the server does not know.
func TestSettings_AreThoseOfTheServer(t *testing.T) {
	t.Parallel()
	settings, err := os.ReadFile("../../docs/run/settings.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"../helm/lucius/templates/*", "../systemd/*", "../compose/*"} {
		files, _ := filepath.Glob(pattern)
		if len(files) == 0 {
			t.Errorf("%s is empty", pattern)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range variable.FindAllString(string(text), -1) {
				if !strings.Contains(string(settings), "`"+name+"`") {
					t.Errorf("%s sets %s, which docs/run/settings.md does not know", file, name)
				}
			}
		}
	}
}
