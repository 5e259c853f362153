{{- define "fednode.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "fednode.labels" -}}
app.kubernetes.io/name: fednode
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "fednode.selector" -}}
app.kubernetes.io/name: fednode
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fednode.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{/* Nothing in a pod is root, gains anything, or writes outside its volumes. */}}
{{- define "fednode.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
# The volume is handed over once. Doing so at every start would open the key to the group, and it would be refused.
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "fednode.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Where the pods of fedboot are found. */}}
{{- define "fednode.fedboot" -}}
{{ include "fednode.name" . }}-fedboot.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{- define "fednode.configMap" -}}
{{ if .Values.federation.spec }}{{ include "fednode.name" . }}-federation{{ else }}{{ .Values.federation.existingConfigMap }}{{ end }}
{{- end }}

{{- define "fednode.secret" -}}
{{- if eq .Values.membership "key" -}}
{{ if .Values.federation.networkKey }}{{ include "fednode.name" . }}-network{{ else }}{{ .Values.federation.existingSecret }}{{ end }}
{{- else if eq .Values.membership "tickets" -}}
{{ if .Values.federation.tickets }}{{ include "fednode.name" . }}-tickets{{ else }}{{ .Values.federation.existingTickets }}{{ end }}
{{- else -}}
{{ fail (printf "membership is `%s`, and must be `key` or `tickets`" .Values.membership) }}
{{- end }}
{{- end }}

{{/* The first container of a pod, which has a shell and the secret. `program` is fednode or
fedboot, and `settings` the file that its `join` writes last. */}}
{{- define "fednode.prepare" -}}
{{- $ := .root -}}
- name: prepare
  {{- include "fednode.image" $ | nindent 2 }}
  command: [/bin/sh, -euc]
  args:
    - |
      umask 077
      {{- if eq $.Values.membership "key" }}
      # A secret's files are readable by the group, and such a key is refused: copy it for the owner alone.
      while read -r line; do printf '%s\n' "$line"; done < /secret/network.key > /keys/network.key
      {{- else }}
      # A ticket is used once. Afterwards the certificate in the volume is enough, and nobody need answer.
      [ ! -e /state/{{ .settings }} ] || exit 0
      read -r ticket < "/secret/$POD_NAME" || [ -n "$ticket" ]
      printf '%s\n' "$ticket" | /usr/bin/{{ .program }} join - --dir /state{{ with .flags }} {{ . }}{{ end }}
      {{- end }}
  {{- if eq $.Values.membership "tickets" }}
  env:
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    {{- with .env }}
    {{- . | nindent 4 }}
    {{- end }}
  {{- end }}
  resources:
    requests: {cpu: 10m, memory: 64Mi}
    limits: {memory: 256Mi}
  securityContext:
    {{- include "fednode.security" $ | nindent 4 }}
  volumeMounts:
    - {name: secret, mountPath: /secret, readOnly: true}
    - {name: state, mountPath: /state}
    {{- if eq $.Values.membership "key" }}
    - {name: keys, mountPath: /keys}
    {{- else if and (eq .program "fednode") $.Values.nodes.dataVolume }}
    - {name: data, mountPath: /data, readOnly: true}
    {{- end }}
{{- end }}

{{/* The mounts that both programs have. */}}
{{- define "fednode.mounts" -}}
- {name: state, mountPath: /state}
{{- if eq .Values.membership "key" }}
- {name: federation, mountPath: /federation, readOnly: true}
- {name: keys, mountPath: /keys, readOnly: true}
{{- end }}
{{- end }}

{{/* The volumes of a pod but the one for state, which is a claim. */}}
{{- define "fednode.volumes" -}}
- name: secret
  secret: {secretName: {{ include "fednode.secret" . }}}
{{- if eq .Values.membership "key" }}
- name: federation
  configMap: {name: {{ include "fednode.configMap" . }}}
- name: keys
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- end }}
{{- end }}

{{/* A process that answers is alive and ready. Its API listens on loopback, so the question is asked inside the pod. */}}
{{- define "fednode.probes" -}}
startupProbe:
  exec: {command: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 10
  failureThreshold: 120
livenessProbe:
  exec: {command: {{ . }}}
  periodSeconds: 60
  timeoutSeconds: 20
  failureThreshold: 5
readinessProbe:
  exec: {command: {{ . }}}
  periodSeconds: 20
  timeoutSeconds: 10
{{- end }}

{{- define "fednode.claim" -}}
- metadata:
    name: state
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .root.Values.storageClassName }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests: {storage: {{ .storage }}}
{{- end }}

{{- define "fednode.scheduling" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
