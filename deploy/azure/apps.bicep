// The replicas, on Container Apps: one app with all roles, or one for each role.
param location string
param prefix string
param workspaceName string
param identityName string
param image string
param registryName string
param replicas int
param splitRoles bool
param external bool

@secure()
param tokenFile string

@description('Environment variables of every replica, by name.')
param variables object

var parts = splitRoles ? [
  { name: 'api', roles: 'api', api: true }
  { name: 'relay', roles: 'relay', api: false }
  { name: 'sweeper', roles: 'sweeper', api: false }
] : [
  { name: 'all', roles: 'api,relay,sweeper', api: true }
]

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' existing = {
  name: identityName
}

resource workspace 'Microsoft.OperationalInsights/workspaces@2023-09-01' existing = {
  name: workspaceName
}

// AcrPull, if the image is in a registry of this resource group.
var acrPull = '7f951dda-4ed3-4680-a7ca-43fe172d538d'

resource registry 'Microsoft.ContainerRegistry/registries@2023-07-01' existing = if (!empty(registryName)) {
  name: empty(registryName) ? 'none00' : registryName
}

resource mayPull 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(registryName)) {
  name: guid(resourceGroup().id, registryName, identity.id, acrPull)
  scope: registry
  properties: {
    principalId: identity.properties.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', acrPull)
  }
}

resource environment 'Microsoft.App/managedEnvironments@2024-03-01' = {
  name: '${prefix}-environment'
  location: location
  properties: {
    appLogsConfiguration: {
      destination: 'log-analytics'
      logAnalyticsConfiguration: {
        customerId: workspace.properties.customerId
        sharedKey: workspace.listKeys().primarySharedKey
      }
    }
  }
}

// AZURE_CLIENT_ID chooses the identity: an app may have several.
var common = union(variables, {
  AZURE_CLIENT_ID: identity.properties.clientId
  LUCIUS_LISTEN_ADDR: ':8080'
}, empty(tokenFile) ? {} : {
  LUCIUS_AUTH_FILE: '/etc/lucius/auth/tokens.yaml'
})

resource app 'Microsoft.App/containerApps@2024-03-01' = [for part in parts: {
  name: '${prefix}-${part.name}'
  location: location
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: { '${identity.id}': {} }
  }
  properties: {
    managedEnvironmentId: environment.id
    configuration: {
      activeRevisionsMode: 'Single'
      ingress: part.api ? {
        external: external
        targetPort: 8080
        transport: 'auto'
        allowInsecure: false
      } : null
      registries: empty(registryName) ? [] : [
        { server: '${registryName}${az.environment().suffixes.acrLoginServer}', identity: identity.id }
      ]
      secrets: empty(tokenFile) ? [] : [
        { name: 'tokens', value: tokenFile }
      ]
    }
    template: {
      // LUCIUS_SHUTDOWN_GRACE, and half a minute for replies and directives in hand.
      terminationGracePeriodSeconds: 60
      containers: [
        {
          name: 'lucius'
          image: image
          resources: { cpu: json('1.0'), memory: '2Gi' }
          env: concat(map(items(common), entry => { name: entry.key, value: entry.value }), [
            { name: 'LUCIUS_ROLES', value: part.roles }
          ])
          probes: [
            { type: 'Liveness', httpGet: { path: '/healthz', port: 8080 }, periodSeconds: 10, failureThreshold: 3 }
            { type: 'Readiness', httpGet: { path: '/readyz', port: 8080 }, periodSeconds: 5, failureThreshold: 3 }
            { type: 'Startup', httpGet: { path: '/healthz', port: 8080 }, periodSeconds: 6, failureThreshold: 10 }
          ]
          volumeMounts: empty(tokenFile) ? [] : [
            { volumeName: 'auth', mountPath: '/etc/lucius/auth' }
          ]
        }
      ]
      volumes: empty(tokenFile) ? [] : [
        { name: 'auth', storageType: 'Secret', secrets: [{ secretRef: 'tokens', path: 'tokens.yaml' }] }
      ]
      // Replicas share their work by themselves; more of them each read the schedule.
      scale: { minReplicas: replicas, maxReplicas: replicas }
    }
  }
  dependsOn: [mayPull]
}]

@description('Address of the API.')
output api string = 'https://${app[0].properties.configuration.ingress.fqdn}'
