package protocol

import (
	"path/filepath"
	"slices"
	"time"
)

// Description is the public description of a protocol.
type Description struct {
	ProtocolID     string            `json:"protocol_id"`
	Version        string            `json:"version,omitempty"`
	RequestTypes   []string          `json:"request_types"`
	SchemaVersions []string          `json:"schema_versions,omitempty"`
	Steps          []StepDescription `json:"steps"`
	// File is the name of the file, without its folder.
	File string `json:"file"`
	// Digest is the SHA-256 of the file, in hexadecimal: it tells apart two
	// contents under one version.
	Digest string `json:"digest"`
	// LoadedAt is when the protocol's registry was put into use, zero if it was not.
	LoadedAt time.Time `json:"loaded_at,omitzero"`
}

// StepDescription is the public description of a step.
type StepDescription struct {
	StepID   string `json:"step_id"`
	StepType string `json:"step_type"`
	Service  string `json:"service"`
}

// List describes all protocols, ordered by id. The caller owns the result.
func (r *Registry) List() []Description {
	list := make([]Description, 0, len(r.protocols))
	for _, p := range r.Protocols() {
		list = append(list, p.describe())
	}
	return list
}

// describe returns the protocol's description.
func (p *Protocol) describe() Description {
	steps := make([]StepDescription, len(p.Steps))
	for i := range p.Steps {
		steps[i] = StepDescription{StepID: p.Steps[i].ID, StepType: p.Steps[i].Type, Service: p.Steps[i].Service}
	}
	return Description{
		ProtocolID: p.ID, Version: p.Version, RequestTypes: slices.Clone(p.RequestTypes),
		SchemaVersions: slices.Clone(p.SchemaVersions), Steps: steps,
		File: filepath.Base(p.File), Digest: p.Digest,
	}
}
