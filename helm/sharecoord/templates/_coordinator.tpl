{{/* The coordinator's container, in the two shapes, and the volumes that both need. */}}

{{/* Arguments of the process. */}}
{{- define "sharecoord.args" -}}
- serve
- --config=/etc/sharecoord/config/config.yaml
- --kafka={{ .Values.kafka.bootstrapServers }}
{{- if .Values.kafka.clientConfig.existingSecret }}
- --kafka-config=/etc/sharecoord/kafka/{{ .Values.kafka.clientConfig.key }}
{{- end }}
{{- if eq .Values.store.type "sqlite" }}
- --store=sqlite:////var/lib/sharecoord/sharecoord.db
{{- end }}
{{- if include "sharecoord.tcp" . }}
- --listen=0.0.0.0:7070
{{- if .Values.insecure }}
- --insecure
{{- end }}
{{- else }}
- --listen={{ include "sharecoord.sidecarAddress" . }}
{{- end }}
{{- if .Values.kafkaPort.enabled }}
- --kafka-listen={{ ternary "0.0.0.0" "localhost" (eq .Values.mode "service") }}:{{ .Values.kafkaPort.port }}
{{- end }}
{{- end }}

{{/* Environment of the process: what comes from a Secret or from the pod itself. */}}
{{- define "sharecoord.env" -}}
{{- if include "sharecoord.fleet" . }}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: SHARECOORD_COORDINATOR__ADVERTISED_ADDRESS
  # In brackets, which an IPv6 address needs and an IPv4 address may have.
  value: "[$(POD_IP)]:7070"
- name: SHARECOORD_COORDINATOR__PEER_PORT
  # At the same host; no Service leads there.
  value: "7072"
{{- with .Values.tls.peerName }}
- name: SHARECOORD_TLS__PEER_NAME
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- with include "sharecoord.kafkaAddress" . }}
- name: SHARECOORD_KAFKA__PORT_ADVERTISED
  value: {{ . | quote }}
{{- end }}
{{- if eq .Values.store.type "external" }}
- name: SHARECOORD_STORE__URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.store.external.existingSecret }}
      key: {{ .Values.store.external.key }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Everything of the container that both shapes share. */}}
{{- define "sharecoord.container" -}}
name: sharecoord
image: {{ include "sharecoord.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  {{- include "sharecoord.args" . | nindent 2 }}
ports:
  {{- if include "sharecoord.tcp" . }}
  - {name: grpc, containerPort: 7070, protocol: TCP}
  {{- end }}
  {{- if include "sharecoord.fleet" . }}
  - {name: peer, containerPort: 7072, protocol: TCP}
  {{- end }}
  - {name: management, containerPort: 7071, protocol: TCP}
  {{- if include "sharecoord.kafkaAddress" . }}
  - {name: kafka, containerPort: {{ .Values.kafkaPort.port }}, protocol: TCP}
  {{- end }}
{{- with include "sharecoord.env" . | trim }}
env:
  {{- . | nindent 2 }}
{{- end }}
{{- with .Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
startupProbe:
  {{- include "sharecoord.startupProbe" . | nindent 2 }}
readinessProbe:
  {{- include "sharecoord.readinessProbe" . | nindent 2 }}
livenessProbe:
  {{- include "sharecoord.livenessProbe" . | nindent 2 }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  {{- include "sharecoord.mounts" . | nindent 2 }}
{{- end }}

{{/* Probes on the management port. They need no TLS of the listener, and work for a Unix socket too. A
start may take as long as a migration of the store does. */}}
{{- define "sharecoord.httpGet" -}}
{{- $scheme := include "sharecoord.managementScheme" (index . 0) -}}
{path: {{ index . 1 }}, port: management{{ if eq $scheme "https" }}, scheme: HTTPS{{ end }}}
{{- end }}

{{- define "sharecoord.startupProbe" -}}
{{- with .Values.startupProbe }}{{ toYaml . }}{{ else -}}
httpGet: {{ include "sharecoord.httpGet" (list . "/healthz/ready") }}
periodSeconds: 2
failureThreshold: {{ div (add1 (int .Values.startupTimeoutSeconds)) 2 }}
{{- end }}
{{- end }}

{{- define "sharecoord.livenessProbe" -}}
{{- with .Values.livenessProbe }}{{ toYaml . }}{{ else -}}
httpGet: {{ include "sharecoord.httpGet" (list . "/healthz/live") }}
periodSeconds: 10
timeoutSeconds: 3
failureThreshold: 3
{{- end }}
{{- end }}

{{/* gRPC where the kubelet can speak it (clear text on TCP), else the same answer over HTTP. */}}
{{- define "sharecoord.readinessProbe" -}}
{{- if .Values.readinessProbe }}{{ toYaml .Values.readinessProbe }}
{{- else -}}
{{- if and (include "sharecoord.tcp" .) (not .Values.tls.existingSecret) -}}
grpc: {port: 7070}
{{- else -}}
httpGet: {{ include "sharecoord.httpGet" (list . "/healthz/ready") }}
{{- end }}
periodSeconds: 5
timeoutSeconds: 3
failureThreshold: 2
{{- end }}
{{- end }}

{{/* Secrets and ConfigMaps that exist already, by the folder below /etc/sharecoord where they are mounted
whole: a file that is mounted by subPath would never change. */}}
{{- define "sharecoord.folders" -}}
{{- with .Values.kafka.clientConfig.existingSecret }}
kafka: {secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- if and (include "sharecoord.tcp" .) .Values.tls.existingSecret }}
tls: {secret: {secretName: {{ .Values.tls.existingSecret }}, defaultMode: 0440}}
{{- end }}
{{- with .Values.security.tokens.existingSecret }}
tokens: {secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- with .Values.security.oidc.caSecret }}
oidc: {secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- with include "sharecoord.rulesName" . }}
rules: {configMap: {name: {{ . }}}}
{{- end }}
{{- with .Values.management.tls.existingSecret }}
management-tls: {secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- with .Values.management.metricsToken.existingSecret }}
metrics-token: {secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- end }}

{{- define "sharecoord.mounts" -}}
- name: sharecoord-config
  mountPath: /etc/sharecoord/config
  readOnly: true
- name: sharecoord-tmp
  mountPath: /tmp
- name: sharecoord-state
  mountPath: /var/lib/sharecoord
{{- range $folder, $_ := include "sharecoord.folders" . | fromYaml }}
- name: sharecoord-{{ $folder }}
  mountPath: /etc/sharecoord/{{ $folder }}
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Volumes of the pod, for both shapes. */}}
{{- define "sharecoord.volumes" -}}
- name: sharecoord-config
  configMap:
    name: {{ include "sharecoord.fullname" . }}
- name: sharecoord-tmp
  emptyDir: {sizeLimit: 64Mi}
- name: sharecoord-state
{{- if eq .Values.store.type "sqlite" }}
  persistentVolumeClaim:
    claimName: {{ include "sharecoord.pvcName" . }}
{{- else }}
  emptyDir: {sizeLimit: 64Mi}
{{- end }}
{{- range $folder, $source := include "sharecoord.folders" . | fromYaml }}
- name: sharecoord-{{ $folder }}
  {{- toYaml $source | nindent 2 }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
The native sidecar: put it first among your pod's initContainers. It starts before your containers,
which wait for its startup probe, and ends after them.

  initContainers:
    {{- include "sharecoord.sidecar" .Subcharts.sharecoord | nindent 8 }}
  containers:
    - name: app
      env:
        - name: SHARECOORD_BOOTSTRAP_SERVER
          value: {{ include "sharecoord.sidecarAddress" .Subcharts.sharecoord }}
      volumeMounts:
        {{- include "sharecoord.sidecarSocketMount" .Subcharts.sharecoord | nindent 12 }}
  volumes:
    {{- include "sharecoord.sidecarVolumes" .Subcharts.sharecoord | nindent 8 }}
*/}}
{{- define "sharecoord.sidecar" -}}
{{- include "sharecoord.check" . }}
- {{ include "sharecoord.container" . | nindent 2 | trim }}
    {{- include "sharecoord.sidecarSocketMount" . | nindent 4 }}
  restartPolicy: Always
  resources:
    {{- toYaml .Values.sidecar.resources | nindent 4 }}
{{- end }}

{{/* The mount that the application's container needs to reach the socket. */}}
{{- define "sharecoord.sidecarSocketMount" -}}
- name: sharecoord-socket
  mountPath: {{ .Values.sidecar.socketDir }}
{{- end }}

{{/* The volumes that the pod needs. */}}
{{- define "sharecoord.sidecarVolumes" -}}
- name: sharecoord-socket
  emptyDir: {sizeLimit: 1Mi}
{{ include "sharecoord.volumes" . }}
{{- end }}
