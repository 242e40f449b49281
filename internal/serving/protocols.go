package serving

import (
	"context"
	"path/filepath"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/protocol"
)

// protocolsPort serves the protocols in use to HTTP.
type protocolsPort struct{ holder *protocol.Holder }

func (a protocolsPort) Protocols(context.Context) (api.ProtocolList, error) {
	out := api.ProtocolList{LoadedAt: api.NewTime(a.holder.LoadedAt())}
	for _, p := range a.holder.Current().Protocols() {
		shown := api.Protocol{
			ProtocolID: p.ID, Version: p.Version, Digest: p.Digest, RequestTypes: p.RequestTypes,
			SchemaVersions: p.SchemaVersions, File: filepath.Base(p.File), Steps: make([]api.ProtocolStep, len(p.Steps)),
		}
		for i := range p.Steps {
			shown.Steps[i] = api.ProtocolStep{StepID: p.Steps[i].ID, StepType: p.Steps[i].Type, Service: p.Steps[i].Service}
		}
		out.Protocols = append(out.Protocols, shown)
	}
	return out, nil
}
