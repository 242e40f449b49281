package console

import (
	"encoding/json"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// protocolsPage shows the protocols, with the steps of each.
type protocolsPage struct {
	api.ProtocolList

	Shown []protocolCard
}

// protocolCard is a protocol with the command that submits a job of it.
type protocolCard struct {
	api.Protocol

	Command string
}

func protocols(r *request) (view, error) {
	list, err := call[api.ProtocolList](r.api.ListProtocols(r.Context()))
	if err != nil {
		return view{}, err
	}
	data := protocolsPage{ProtocolList: list}
	for i := range list.Protocols {
		data.Shown = append(data.Shown, protocolCard{Protocol: list.Protocols[i], Command: submitting(r, &list.Protocols[i])})
	}
	return view{Title: "Protocols", Template: "protocols", Data: data}, nil
}

// submitting returns the command that submits a job of the protocol.
func submitting(r *request, p *api.Protocol) string {
	tenant := "my_tenant"
	if names := r.tenants(api.GrantRoleSubmit); len(names) > 0 && names[0] != "*" {
		tenant = names[0]
	}
	body := struct {
		TenantID      string            `json:"tenant_id"`
		RequestType   string            `json:"request_type"`
		SchemaVersion string            `json:"schema_version"`
		InputRef      map[string]string `json:"input_ref"`
		OutputRef     map[string]string `json:"output_ref"`
		Payload       map[string]any    `json:"payload"`
	}{
		TenantID: tenant, RequestType: "TYPE", SchemaVersion: "1", Payload: map[string]any{},
		InputRef: map[string]string{"uri": "s3://bucket/in"}, OutputRef: map[string]string{"uri": "s3://bucket/out"},
	}
	if len(p.PayloadExample) > 0 {
		body.Payload = p.PayloadExample
	}
	if len(p.RequestTypes) > 0 {
		body.RequestType = p.RequestTypes[0]
	}
	if len(p.SchemaVersions) > 0 {
		body.SchemaVersion = p.SchemaVersions[0]
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // The payload was read from JSON.
	}
	return "curl " + diagnosis.Quoted(r.Origin+"/v1/commands") + r.Authorization() +
		" -H 'Content-Type: application/json' -d " + diagnosis.Quoted(string(text))
}

// Authorization returns curl's options for a server with access control, empty without. They
// name environment variables, so that the copied command does not hold the user's token.
func (r *request) Authorization() string {
	switch r.Who.Origin {
	case api.IdentityOriginLocal:
		return ""
	case api.IdentityOriginCertificate:
		return ` --cert "$LUCIUS_CLIENT_CERT" --key "$LUCIUS_CLIENT_KEY"`
	default:
		return ` -H "Authorization: Bearer $LUCIUS_TOKEN"`
	}
}
