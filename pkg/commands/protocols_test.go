package commands_test

import (
	"encoding/json"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// second is another protocol, which does not conflict with small's.
func secondProtocol(version string) string {
	return strings.NewReplacer("protocol_id: p", "protocol_id: a", "[r]", "[r2]").Replace(smallProtocol("version: "+version, ""))
}

func TestProtocols(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry := musttest.Make[fs.FS](t, commands.LoadProtocolsFS, protocolFolder("p.yaml", smallProtocol(`schema_versions: ["1"]`, ""), "q.yaml", secondProtocol("1.10")))
		steps := []commands.ProtocolStep{{ID: "one", Type: "ONE", Service: "svc", Input: statemachine.InputJob}}
		want := []*commands.Protocol{
			{ID: "a", Version: "1.10", RequestTypes: []string{"r2"}, Steps: steps, File: "q.yaml"},
			{ID: "p", RequestTypes: []string{"r"}, SchemaVersions: []string{"1"}, Steps: steps, File: "p.yaml"},
		}
		for _, p := range registry.Protocols() {
			if len(p.Digest) != 64 {
				t.Errorf("%s has the digest %q, want 64 hexadecimal digits", p.ID, p.Digest)
			}
		}
		if diff := cmp.Diff(want, registry.Protocols(), unexported); diff != "" {
			t.Errorf("registry (-want +got):\n%s", diff)
		}
		begun := time.Now()
		time.Sleep(time.Hour)
		if !registry.LoadedAt.Equal(begun) {
			t.Errorf("loaded at %s, want %s", registry.LoadedAt, begun)
		}
	})
}

func TestProtocol_JSON(t *testing.T) {
	t.Parallel()
	got, err := json.Marshal(commands.Protocol{
		ID: "p", RequestTypes: []string{"r"}, File: "p.yaml", Digest: "d", Order: commands.ProtocolOrder{Key: "/id"},
		Steps: []commands.ProtocolStep{{ID: "one", Type: "ONE", Service: "svc", Input: statemachine.InputJob}},
	})
	want := `{"protocol_id":"p","request_types":["r"],"steps":[{"step_id":"one","step_type":"ONE","service":"svc"}],"file":"p.yaml","digest":"d"}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
}

// The digest is of names and contents, wherever the files are.
func TestDigest(t *testing.T) {
	t.Parallel()
	of := func(registry *commands.Protocols, err error) string {
		t.Helper()
		musttest.NoError(t, err)
		return registry.Digest()
	}
	w := watchProtocols(t)
	first := of(commands.LoadProtocolsFS(protocolFolder("p.yaml", smallProtocol("version: 1", ""))))
	if got := of(commands.LoadProtocols(w.dir)); got != first {
		t.Errorf("the same files in a folder have the digest %s, want %s", got, first)
	}
	for name, registry := range map[string]string{
		"another text": of(commands.LoadProtocolsFS(protocolFolder("p.yaml", smallProtocol("version: 1 ", "")))),
		"another name": of(commands.LoadProtocolsFS(protocolFolder("q.yaml", smallProtocol("version: 1", "")))),
		"one more":     of(commands.LoadProtocolsFS(protocolFolder("p.yaml", smallProtocol("version: 1", ""), "q.yaml", secondProtocol("1")))),
	} {
		if registry == first {
			t.Errorf("%s has the same digest", name)
		}
	}
}
