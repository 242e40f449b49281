package packaging

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/opencontainers/go-digest"
)

// baseImage answers for the image that the binary is built in, which is not fetched.
type baseImage struct{}

func (baseImage) ResolveImageConfig(_ context.Context, ref string, _ sourceresolver.Opt) (string, digest.Digest, []byte, error) {
	config := []byte(`{"architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/usr/local/go/bin:/usr/bin:/bin"]}, "rootfs": {"type": "layers"}}`)
	return ref, digest.FromBytes(config), config, nil
}

// A command such as lucius demo writes to the current folder. In the image that is one which
// the image's user may write to: the volume.
func TestImage_RunsInAFolderOfItsUser(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	image, err := dockerfile2llb.Dockerfile2LLB(t.Context(), text, dockerfile2llb.ConvertOpt{MetaResolver: baseImage{}})
	if err != nil {
		t.Fatal(err)
	}
	config := &image.Image.Config
	if _, volume := config.Volumes[config.WorkingDir]; !volume || config.User != "65532:65532" {
		t.Errorf("user %s runs it in %q, and the volumes are %v", config.User, config.WorkingDir, config.Volumes)
	}
}

// TestImage_IsWhatDockerReads has BuildKit read the Dockerfile, with the checks of
// docker build --check, and each of two mistakes is found.
func TestImage_IsWhatDockerReads(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	check := func(text string) (warnings []string, err error) {
		_, err = dockerfile2llb.Dockerfile2LLB(t.Context(), []byte(text), dockerfile2llb.ConvertOpt{
			MetaResolver: baseImage{},
			Warn: func(rule, _, _, message string, _ []parser.Range) {
				warnings = append(warnings, rule+": "+message)
			},
		})
		return warnings, err
	}
	if warnings, err := check(string(text)); err != nil || len(warnings) != 0 {
		t.Errorf("BuildKit says %v, %v", warnings, err)
	}
	if warnings, err := check(strings.Replace(string(text), "ENV ", "ENV old value\nENV ", 1)); err != nil || len(warnings) != 1 {
		t.Errorf("the old form of ENV is answered %v, %v", warnings, err)
	}
	if _, err := check(strings.Replace(string(text), "WORKDIR", "WORKDIRECTORY", 1)); err == nil {
		t.Error("an unknown instruction is accepted")
	}
}
